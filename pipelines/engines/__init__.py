"""What runs a list of jobs: local processes or Apache Beam."""
