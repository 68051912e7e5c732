"""redis-py over TLS, with a certificate of the client's own."""

import os
import unittest

import redis

from ports import free_port
from server import ServerTest

CERTIFICATES = os.environ["TLS_CERTIFICATES"]


def path(name):
    return os.path.join(CERTIFICATES, name)


class TlsTest(ServerTest):
    def setUp(self):
        self.port = free_port()
        files = {"cert-file": "server.crt", "key-file": "server.key", "ca-cert-file": "ca.crt"}
        values = {f"tls-{name}": path(file) for name, file in files.items()}
        pairs = [word for pair in {**values, "tls-port": self.port}.items() for word in pair]
        self.assertTrue(self.connect().execute_command("CONFIG SET", *pairs))

    def over_tls(self, **options):
        shown = {"ssl_certfile": path("client.crt"), "ssl_keyfile": path("client.key"), **options}
        client = redis.Redis(
            host="localhost", port=self.port, ssl=True, ssl_ca_certs=path("ca.crt"), **shown
        )
        self.addCleanup(client.close)
        return client

    def test_values_small_and_large_and_pipelines(self):
        client = self.over_tls()
        large = os.urandom(5_000_000)
        self.assertTrue(client.set("large", large))
        self.assertEqual(client.get("large"), large)
        pipe = client.pipeline(transaction=False)
        for number in range(1000):
            pipe.set(f"k:{number}", number)
            pipe.get(f"k:{number}")
        self.assertEqual(pipe.execute()[1::2], [b"%d" % number for number in range(1000)])

    def test_messages_reach_who_listens(self):
        client = self.over_tls()
        with client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe("news")
            listener.get_message(timeout=5)
            for number in range(100):
                self.assertEqual(client.publish("news", number), 1)
            for number in range(100):
                message = None
                while message is None:
                    message = listener.get_message(timeout=5)
                self.assertEqual(message["data"], b"%d" % number)

    def test_without_a_certificate_there_is_no_way_in(self):
        with self.assertRaises(redis.exceptions.ConnectionError):
            self.over_tls(ssl_certfile=None, ssl_keyfile=None).ping()
        self.connect().config_set("tls-auth-clients", "optional")
        self.assertTrue(self.over_tls(ssl_certfile=None, ssl_keyfile=None).ping())
        self.connect().config_set("tls-auth-clients", "yes")


if __name__ == "__main__":
    unittest.main()
