"""S3 over a folder: a bucket is a folder, an object is a file of that name."""
