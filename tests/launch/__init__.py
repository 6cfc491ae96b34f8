"""Jobs on machines that are asked for."""
