"""The configuration of a home: `config.toml`, version 1, every key with its default.

`schema` says which settings there are, `load` reads them, `edit` changes one and keeps the user's comments.
"""

from hypaware.config.load import load
from hypaware.config.schema import (
    ClientConfig,
    Config,
    EngineConfig,
    FlushConfig,
    GatewayConfig,
    LakeConfig,
    MaintainConfig,
    PrivacyConfig,
    RedactionConfig,
    RetentionConfig,
    SinkConfig,
    UpstreamConfig,
)

__all__ = [
    "ClientConfig",
    "Config",
    "EngineConfig",
    "FlushConfig",
    "GatewayConfig",
    "LakeConfig",
    "MaintainConfig",
    "PrivacyConfig",
    "RedactionConfig",
    "RetentionConfig",
    "SinkConfig",
    "UpstreamConfig",
    "load",
]
