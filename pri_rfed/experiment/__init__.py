"""Configured runs and sweeps: their configurations, folders, pictures and reports."""
