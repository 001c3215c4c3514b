"""S3: `hot.HotBlobs` (obstore, asyncio) for the hot path, `admin.AdminBlobs` (boto3) for
administration.
"""
