"""Follow: record sessions from the clients' transcripts while they grow, without Spark and without their help."""
