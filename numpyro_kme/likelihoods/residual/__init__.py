"""The location-scale kernel means likelihood: residuals are embedded in place of statistics."""
