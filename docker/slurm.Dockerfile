# The image of gridweave with Slurm, as Debian has it: two clusters and a grid of them in one container, to try it out.
ARG IMAGE=gridweave:0.1.0
FROM ${IMAGE}
USER root
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends slurm-wlm munge \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /etc/munge/munge.key
COPY docker/slurm.sh /usr/local/bin/run-slurm
COPY docker/slurm.toml /etc/gridweave/GRID.toml
HEALTHCHECK --interval=10s --timeout=8s --start-period=240s --retries=3 \
  CMD ["env", "HOME=/home/gridweave", "setpriv", "--reuid=gridweave", "--regid=gridweave", "--clear-groups", "gridweave", "sites"]
ENTRYPOINT ["/usr/bin/tini", "--", "run-slurm"]
CMD []
