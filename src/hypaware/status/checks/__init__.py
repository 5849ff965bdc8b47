"""The checks of `hyp doctor`."""
