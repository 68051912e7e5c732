# docker build -t latchkey .
# docker run -p 6379:6379 -v data:/data -e REDIS_PASSWORD=secret latchkey --appendonly yes
# docker run -v ./sentinel.conf:/etc/sentinel/sentinel.conf latchkey redis-sentinel /etc/sentinel/sentinel.conf
# docker run -it --rm --network host latchkey redis-cli

# Both images serve x86-64 and arm64. New ones: `docker buildx imagetools inspect rust:1-bookworm`, and debian:bookworm-slim.
FROM rust:1.98.1-bookworm@sha256:93ce27a88655056a51dbdd8f5f2d7ddc071c7b0070fb288a37b5a285fc83971e AS build
WORKDIR /src
COPY . .
RUN make install DESTDIR=/image PREFIX=/usr/local REDIS_SERVER=yes

FROM debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
# The numbers of the official images of Redis and Valkey, whose volumes then fit.
RUN groupadd --system --gid 999 redis && useradd --system --gid redis --uid 999 --home-dir /data --no-create-home redis
# redis-cli, redis-benchmark and Redis's own Sentinel; setpriv is a part of Debian's base.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends redis-tools redis-sentinel tzdata \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /image/usr/local/bin/ /usr/local/bin/
# The licences of what is linked in, and the documents.
COPY --from=build /image/usr/local/share/doc/latchkey/ /usr/local/share/doc/latchkey/
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
