#!/bin/sh
# What the container of two Slurm clusters does as root: it starts them, north with four nodes and south with three, all
# of them this container, and then the grid, as a user without any right of root's who may submit to both.
set -eu
install --directory --owner munge --group munge --mode 0755 /run/munge
if [ ! -s /etc/munge/munge.key ]; then
  (umask 077 && head -c 1024 /dev/urandom > /etc/munge/munge.key)
fi
chown munge:munge /etc/munge/munge.key
setpriv --reuid=munge --regid=munge --clear-groups -- /usr/sbin/munged
cluster() { # name, nodes, first port: that of the controller; those of the nodes follow
  folder=/var/lib/slurm-clusters/$1 conf=/etc/slurm/$1.conf
  mkdir -p "$folder/state" "$folder/spool" /etc/slurm
  cat > "$conf" << END
ClusterName=$1
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$3
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
PartitionName=main Nodes=ALL Default=YES MaxTime=1-0 State=UP
END
  for node in $(seq "$2"); do
    port=$(($3 + node))
    echo "NodeName=$1$node NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$port CPUs=2 State=UNKNOWN" >> "$conf"
  done
  /usr/sbin/slurmctld -f "$conf"
  for node in $(seq "$2"); do
    /usr/sbin/slurmd -f "$conf" -N "$1$node"
  done
}
cluster north 4 6820
cluster south 3 6840
cd /var/lib/gridweave
as() { setpriv --reuid=gridweave --regid=gridweave --clear-groups --inh-caps=-all --bounding-set=-all -- "$@"; }
export HOME=/home/gridweave
for conf in /etc/slurm/north.conf /etc/slurm/south.conf; do
  nodes=$(grep -c '^NodeName=' "$conf")
  # What ran when the container was killed may still count as running there.
  until [ "$(SLURM_CONF=$conf sinfo -h -N -t idle,alloc,mix,comp -o %N | sort -u | wc -l)" = "$nodes" ]; do sleep 1; done
done
as gridweave up /etc/gridweave/GRID.toml
trap 'as gridweave down; exit 0' TERM INT
sleep infinity &
wait
