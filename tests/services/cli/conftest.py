"""Fixtures of the command line tests."""

import boto3
import pytest


@pytest.fixture(scope="session")
def s3(stack):
    """An S3 client that is independent of the code under test."""
    return boto3.client(
        "s3",
        endpoint_url=stack["MAILSLICE_S3_ENDPOINT"],
        aws_access_key_id=stack["MAILSLICE_S3_ACCESS_KEY"],
        aws_secret_access_key=stack["MAILSLICE_S3_SECRET_KEY"],
        region_name=stack["MAILSLICE_S3_REGION"],
    )
