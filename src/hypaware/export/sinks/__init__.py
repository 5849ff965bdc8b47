"""The kinds of sinks that come with HypAware; they register like a plugin's."""
