"""The Spark engine of a home: its jars, its JVM, its session, and the jobs that other processes send to it."""
