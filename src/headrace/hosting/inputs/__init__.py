"""What programs find when they start: code, requirements, channels, certificates."""
