"""What a row is: datasets, columns, identity, canonical JSON. Knows no file, no Spark, no network."""
