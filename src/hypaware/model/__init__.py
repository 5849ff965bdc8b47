"""Define what a row is: datasets, columns, identity and canonical JSON. No file, Spark or network access."""
