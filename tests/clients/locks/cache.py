"""`cache.lock` of latchkey_locks.django, over the Redis backends of Django and of django-redis."""

import os
import threading
import unittest

import django
from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django_redis.cache import RedisCache as OtherCache
from redis.exceptions import LockError, LockNotOwnedError, WatchError

from latchkey_locks.django import LockMixin


class Cache(LockMixin, RedisCache):
    pass


class DjangoRedisCache(LockMixin, OtherCache):
    pass


settings.configure(
    CACHES={
        "default": {"BACKEND": f"{__name__}.Cache", "LOCATION": os.environ["REDIS_URL"], "KEY_PREFIX": "one"},
        "other": {"BACKEND": f"{__name__}.DjangoRedisCache", "LOCATION": os.environ["REDIS_URL"], "KEY_PREFIX": "other"},
    }
)
django.setup()


class CacheLocks:
    def test_excludes_others_until_the_end_of_the_block(self):
        with self.cache.lock("jobs", timeout=30) as lock:
            self.assertGreater(lock.fence, 0)
            self.assertTrue(lock.owned())
            self.assertFalse(self.cache.lock("jobs").acquire(blocking=False))
            self.assertFalse(self.cache.lock("jobs", blocking_timeout=0.03).acquire())
            with self.assertRaises(LockError), self.cache.lock("jobs", blocking=False):
                pass
            elsewhere = []
            thread = threading.Thread(target=lambda: elsewhere.append(lock.owned()))
            thread.start()
            thread.join()
            self.assertEqual(elsewhere, [False])
        self.assertTrue(self.cache.lock("jobs").acquire(blocking=False))

    def test_uses_the_prefix_and_the_version_of_the_cache(self):
        with self.cache.lock("place", version=7):
            self.assertEqual(self.client().exists(f"{self.prefix}:7:lock:place"), 1)
            self.assertTrue(self.cache.lock("place").acquire(blocking=False))

    def test_a_lost_lock_is_told_but_not_instead_of_the_blocks_own_error(self):
        with self.assertRaises(LockNotOwnedError), self.cache.lock("lost") as lock:
            self.client().delete(lock.name)
            with self.assertRaises(LockNotOwnedError):
                lock.extend(10)
        with self.assertRaises(KeyError), self.cache.lock("lost") as lock:
            self.client().delete(lock.name)
            raise KeyError
        with self.assertRaises(LockError):
            lock.release()

    def test_extends_and_guards(self):
        with self.cache.lock("long", timeout=10) as lock:
            lock.extend(200)
            self.assertGreater(self.client().pttl(lock.name), 190_000)
            transaction = self.client().pipeline(transaction=True)
            lock.guard(transaction).set("data", 1)
            self.client().delete(lock.name)
            with self.assertRaises(WatchError):
                transaction.execute()
            self.assertFalse(lock.owned())
            self.assertTrue(lock.acquire())


class OfDjango(CacheLocks, unittest.TestCase):
    prefix = "one"

    def setUp(self):
        self.cache = caches["default"]

    def client(self):
        return self.cache._cache.get_client(write=True)


class OfDjangoRedis(CacheLocks, unittest.TestCase):
    prefix = "other"

    def setUp(self):
        self.cache = caches["other"]

    def client(self):
        return self.cache.client.get_client(write=True)


if __name__ == "__main__":
    unittest.main()
