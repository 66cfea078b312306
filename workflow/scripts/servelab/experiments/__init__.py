"""The experiments E1 to E12, one module a kind. What a kind must have is in `ExperimentKind`."""
