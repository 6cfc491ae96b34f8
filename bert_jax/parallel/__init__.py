"""Devices, the mesh, and the one table that lays arrays out over it."""
