"""Raw exchanges of the lake through today's decoders: what older ones missed is added, nothing comes twice."""
