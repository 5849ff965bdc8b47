"""For those who write a sink: a destination with faults, a small lake, and the contract that every sink passes."""
