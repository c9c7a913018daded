"""Small price lists of AmazonSageMaker in the forms that AWS gives them: offer files, and products of its API."""

from __future__ import annotations

import json

REGIONS = {"us-east-1": ("USE1", "US East (N. Virginia)"), "eu-north-1": ("EUN1", "EU (Stockholm)")}
RATES = {
    ("us-east-1", "Train", "ml.p4d.24xlarge"): "25.2514880000",
    ("us-east-1", "Host", "ml.p4d.24xlarge"): "99.0000000000",
    ("us-east-1", "Train", "ml.c5.xlarge"): "0.2040000000",
    ("eu-north-1", "Train", "ml.c5.xlarge"): "0.2180000000",
    ("eu-north-1", "Train", "ml.p4d.24xlarge"): "27.0000000000",
    ("eu-north-1", "Notebk", "ml.c5.xlarge"): "0.1000000000",
}
SINCE, VERSION, PUBLISHED = "2026-11-01T00:00:00Z", "20261116201104", "2026-11-16T20:11:04Z"


def products(since: str = SINCE) -> dict[str, dict[str, object]]:
    """Returns products of the API, by SKU."""
    found: dict[str, dict[str, object]] = {}
    for number, ((region, kind, instance_type), amount) in enumerate(RATES.items()):
        sku = f"SKU{number:013d}"
        term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
        prefix, location = REGIONS[region]
        attributes = {
            "servicecode": "AmazonSageMaker",
            "location": location,
            "locationType": "AWS Region",
            "usagetype": f"{prefix}-{kind}:{instance_type}",
            "operation": "RunInstance",
            "regionCode": region,
            "servicename": "Amazon SageMaker",
        }
        dimension = {
            "rateCode": rate,
            "description": f"${amount} per {kind} {instance_type} hour in {location}",
            "beginRange": "0",
            "endRange": "Inf",
            "unit": "Hrs",
            "pricePerUnit": {"USD": amount},
            "appliesTo": [],
        }
        on_demand = {
            "offerTermCode": "JRTCKXETXF",
            "sku": sku,
            "effectiveDate": since,
            "priceDimensions": {rate: dimension},
            "termAttributes": {},
        }
        found[sku] = {
            "product": {"sku": sku, "productFamily": "ML Instance", "attributes": attributes},
            "serviceCode": "AmazonSageMaker",
            "terms": {"OnDemand": {term: on_demand}},
            "version": VERSION,
            "publicationDate": PUBLISHED,
        }
    return found


def json_offer(since: str = SINCE, code: str = "AmazonSageMaker") -> str:
    """Returns an offer file in JSON."""
    every = products(since)
    document = {
        "formatVersion": "v1.0",
        "disclaimer": "This pricing list is for informational purposes only.",
        "offerCode": code,
        "version": VERSION,
        "publicationDate": PUBLISHED,
        "products": {sku: each["product"] for sku, each in every.items()},
        "terms": {"OnDemand": {sku: each["terms"]["OnDemand"] for sku, each in every.items()}},  # type: ignore[index]
        "attributesList": {},
    }
    return json.dumps(document)
