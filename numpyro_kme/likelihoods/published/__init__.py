"""The kernel means likelihood of Hsu & Ramos (2019), the published form: embeds data kernels."""
