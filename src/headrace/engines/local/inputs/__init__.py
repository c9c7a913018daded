"""What a job needs before its programs start: code, channels, requirements, certificates, artefact places."""
