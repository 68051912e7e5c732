# docker build -t latchkey .
# docker run -p 6379:6379 -v data:/data latchkey --appendonly yes
# docker run -it --rm --network host latchkey redis-cli

FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN make install DESTDIR=/image PREFIX=/usr/local REDIS_SERVER=yes

FROM debian:bookworm-slim
# The numbers of the official image of Redis, whose volumes then fit.
RUN groupadd --system --gid 999 redis && useradd --system --gid redis --uid 999 --home-dir /data --no-create-home redis
# redis-cli and redis-benchmark; setpriv is a part of Debian's base.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends redis-tools tzdata \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /image/usr/local/bin/ /usr/local/bin/
COPY packaging/docker-entrypoint /usr/local/bin/docker-entrypoint
RUN mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
ENTRYPOINT ["docker-entrypoint"]
EXPOSE 6379
CMD ["latchkey"]
