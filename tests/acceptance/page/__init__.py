"""Tests of the page in a real Chromium. They are a package, so that Chromium ends before other tests begin."""
