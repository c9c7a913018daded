"""What jobs need in an AWS account before SageMaker can run them: a network, a role, an image.

What is made is pure and comes first: `vpc_template`, `role_template`. `aws_calls` speaks to AWS, `stacks` creates,
changes and removes CloudFormation stacks, `image_files` defines images, builds them and sends them to ECR.

Nothing here runs a job, and no job needs it: the same can be made by hand, of the files.
"""
