"""The location-scale kernel means likelihood: residuals are embedded in place of statistics.

Its Gaussian kernels are written out in NumPy, and in JAX as one product of matrices: by `numpyro_kme.kernels` learning
takes 1.0 to 1.9 times the CPU time where programs are compiled, 1.8 to 9.2 times where the number of simulations is
new, and gradients 1.6 times (`python -m benchmarks residual_kernels`).
"""
