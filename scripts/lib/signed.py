"""Requests to an S3 on loopback, signed as AWS wants them (Signature Version 4)."""

import datetime
import hashlib
import hmac
import urllib.parse
import urllib.request


def request(keys, method, path, body=b""):
    """Sends a request to the S3 that AWS_ENDPOINT_URL_S3 of `keys` names; the body of its answer."""
    endpoint, region = keys["AWS_ENDPOINT_URL_S3"], keys["AWS_REGION"]
    host = urllib.parse.urlsplit(endpoint).netloc
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": now}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{digest}"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"{keys['AWS_ACCESS_KEY_ID']}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={key.hex()}"
    message = urllib.request.Request(endpoint + path, data=body, headers=headers, method=method)
    with urllib.request.urlopen(message, timeout=10) as answer:
        return answer.read()
