"""What every part of the package stands on: checks, the host gateway, solves, and private names of other packages."""
