"""The deeper checks of `hyp doctor`: a module for each thing that is looked at, `run` has them in order."""
