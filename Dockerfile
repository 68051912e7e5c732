# docker build -t latchkey .
# docker run -p 6379:6379 -v data:/data -e REDIS_PASSWORD=secret latchkey --appendonly yes
# docker run -v ./sentinel.conf:/etc/sentinel/sentinel.conf latchkey redis-sentinel /etc/sentinel/sentinel.conf
# docker run -it --rm --network host latchkey redis-cli

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN make install DESTDIR=/image PREFIX=/usr/local REDIS_SERVER=yes

FROM debian:bookworm-slim
# The numbers of the official images of Redis and Valkey, whose volumes then fit.
RUN groupadd --system --gid 999 redis && useradd --system --gid redis --uid 999 --home-dir /data --no-create-home redis
# redis-cli, redis-benchmark and Redis's own Sentinel; setpriv is a part of Debian's base.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends redis-tools redis-sentinel tzdata \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /image/usr/local/bin/ /usr/local/bin/
COPY packaging/docker-entrypoint /usr/local/bin/docker-entrypoint
# Started by these names, too, the server and Sentinel have the image's defaults.
RUN cd /usr/local/bin \
 && for name in docker-entrypoint.sh redis-server valkey-server valkey-sentinel; do ln -sf docker-entrypoint $name; done \
 && for tool in check-rdb check-aof; do ln -sf latchkey valkey-$tool; done \
 && for tool in cli benchmark; do ln -s /usr/bin/redis-$tool valkey-$tool; done
RUN mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
ENTRYPOINT ["docker-entrypoint"]
EXPOSE 6379
CMD ["latchkey"]
