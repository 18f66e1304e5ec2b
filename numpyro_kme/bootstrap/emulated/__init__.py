"""The posterior bootstrap on an emulator of the simulator's mean embedding."""
