"""The location-scale kernel means likelihood: residuals are embedded in place of statistics.

Its Gaussian kernels are written out in NumPy, and in JAX as one product of matrices: by `numpyro_kme.kernels` learning
takes 1.0 to 1.1 times the CPU time where programs are compiled, but 1.5 to 7.8 times where the number of simulations is
new, and gradients 1.9 times (`python -m benchmarks residual_kernels`).
"""
