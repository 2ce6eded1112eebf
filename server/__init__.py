"""Flower server."""
