"""An S3 of somebody else, on loopback, for reading. Requests must be signed (Signature Version 4)."""

import hashlib
import hmac
import http.server
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape

KEY, SECRET, REGION = "AKIAEXAMPLE", "a-secret", "us-east-1"
# Few, so that a listing has several pages.
KEYS_OF_PAGE = 2


class S3(http.server.ThreadingHTTPServer):
    """`buckets` holds the bytes of each object, by bucket and key."""

    daemon_threads = True

    def __init__(self, buckets):
        super().__init__(("127.0.0.1", 0), Handler)
        self.buckets = buckets
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def variables(self):
        """The environment that leads there."""
        return {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.server_port}", "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
        }


class Refused(Exception):
    """Status and code of an answer."""


def signature(method, url, headers, names, scope):
    """The signature of a request over the headers `names`, by the rules of AWS."""
    quoted = lambda text: urllib.parse.quote(text, safe="-_.~")
    pairs = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
    query = "&".join(sorted(f"{quoted(name)}={quoted(value)}" for name, value in pairs))
    lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names.split(";"))
    canonical = f"{method}\n{url.path}\n{query}\n{lines}\n{names}\n{headers.get('x-amz-content-sha256')}"
    text = f"AWS4-HMAC-SHA256\n{headers.get('x-amz-date')}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        try:
            self.check(url)
            if bucket not in self.server.buckets:
                raise Refused(404, "NoSuchBucket")
            objects = self.server.buckets[bucket]
            if key:
                self.read(objects, key)
            else:
                self.list(objects, dict(urllib.parse.parse_qsl(url.query)))
        except Refused as refused:
            status, code = refused.args
            self.answer(status, f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode())

    do_HEAD = do_GET

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.answer(403, b"<Error><Code>AccessDenied</Code><Message>It is for reading.</Message></Error>")

    do_DELETE = do_POST = do_PUT

    def check(self, url):
        said = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\S+), SignedHeaders=(\S+), Signature=(\w+)",
            self.headers.get("authorization", ""))
        if not said:
            raise Refused(403, "AccessDenied")
        key, scope, names, given = said.groups()
        if key != KEY:
            raise Refused(403, "InvalidAccessKeyId")
        if given != signature(self.command, url, self.headers, names, scope):
            raise Refused(403, "SignatureDoesNotMatch")

    def read(self, objects, key):
        if key not in objects:
            raise Refused(404, "NoSuchKey")
        body, headers = objects[key], {"etag": etag(objects[key])}
        if self.headers.get("if-match", headers["etag"]) != headers["etag"]:
            raise Refused(412, "PreconditionFailed")
        status, wanted = 200, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or len(body)), len(body) - 1)
            if first > last:
                raise Refused(416, "InvalidRange")
            status, headers["content-range"] = 206, f"bytes {first}-{last}/{len(body)}"
            body = body[first:last + 1]
        self.answer(status, body, headers)

    def list(self, objects, query):
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        keys = sorted(key for key in objects if key.startswith(prefix) and key > after)
        page, more = keys[:KEYS_OF_PAGE], len(keys) > KEYS_OF_PAGE
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size><ETag>{escape(etag(objects[key]))}</ETag></Contents>"
            for key in page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        self.answer(200, f"<ListBucketResult>{truncated}{token}{entries}</ListBucketResult>".encode())

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        """The cases look at the callers."""


def etag(body):
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'
