"""Processes, devices, the mesh, and the rules that shard arrays over the mesh."""
