"""Flower client."""
