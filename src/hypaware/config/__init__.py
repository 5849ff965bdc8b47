"""The configuration of a home: `config.toml`, version 1. Every key has a default.

`schema` defines the settings, `load` reads them, and `edit` changes one and preserves the user's comments.
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
