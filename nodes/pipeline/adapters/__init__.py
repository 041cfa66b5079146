"""What carries the pipeline's messages: one module for each library or protocol, all behind ``pipeline.port``."""
