#!/usr/bin/env bash
# A real Slurm on this one machine, for tests: slurm-single-machine.sh up DIR | down DIR | check
#
# `up` installs slurm-wlm and munge from Debian where they are missing, and starts munged, slurmctld and two slurmd, each
# a made-up node with one core. Their settings, keys, state and logs lie in DIR; a Slurm that is already on this machine
# is not touched. Afterwards every command of Slurm works with SLURM_CONF=DIR/slurm.conf. `down` ends jobs and daemons and
# removes DIR. `check` says in a sentence why this machine cannot do it, and exits with 1.
set -euo pipefail

installed() { command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null; }

check() {
  [ "$(id -u)" = 0 ] || { echo "Slurm's daemons are started by root, and this is $(id -un)."; return 1; }
  installed || [ -e /etc/debian_version ] || {
    echo "Slurm is not installed, and this is no Debian that it could be installed on."; return 1; }
}

free_ports() { python3 -c '
import socket
probes = [socket.socket() for _ in range(3)]
for probe in probes: probe.bind(("127.0.0.1", 0))
print(*(probe.getsockname()[1] for probe in probes))'; }

NAMES="127.0.0.1 node1 node2"

up() {
  check
  local dir; mkdir -p "$1" && chmod 755 "$1" && dir=$(cd "$1" && pwd)
  installed || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends slurm-wlm munge
  } >"$dir/apt.log" 2>&1 || { echo "apt-get could not install slurm-wlm and munge; see $dir/apt.log."; return 1; }
  local host memory controller first second
  host=$(hostname -s); memory=$(awk '/^MemTotal/ {print int($2 / 2048)}' /proc/meminfo); read -r controller first second < <(free_ports)
  mkdir -p "$dir/state" "$dir/spool-node1" "$dir/spool-node2"
  # Processes of a job meet at the first node's name, as they would on machines that know each other.
  grep -qxF "$NAMES" /etc/hosts || echo "$NAMES" >>/etc/hosts
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  cat >"$dir/slurm.conf" <<CONF
ClusterName=moejax
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job starts when its old credential has expired.
AuthInfo=socket=$dir/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$first CPUs=1 RealMemory=$memory
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second CPUs=1 RealMemory=$memory
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=2
CONF
  # Folders above DIR may be anyone's: the key is secret all the same.
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge.seed"
  export SLURM_CONF="$dir/slurm.conf"
  slurmctld
  slurmd -N node1
  slurmd -N node2
  for _ in $(seq 100); do
    [ "$(sinfo --noheader --partition=normal --states=idle --format=%D 2>/dev/null)" = 2 ] && return 0
    sleep 0.2
  done
  echo "Slurm did not come up within 20 s; see the logs in $dir."
  return 1
}

down() {
  [ -e "$1/slurm.conf" ] || return 0
  local dir; dir=$(cd "$1" && pwd)
  export SLURM_CONF="$dir/slurm.conf"
  scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
  scancel --user="$(id -un)" 2>/dev/null || true
  sleep 1
  local file pid
  for file in "$dir"/slurmd-*.pid "$dir/slurmctld.pid" "$dir/munged.pid"; do
    [ -e "$file" ] || continue
    pid=$(cat "$file"); kill "$pid" 2>/dev/null || true
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  # Written over and not replaced: in a container it is a mount.
  local others; others=$(grep -vxF "$NAMES" /etc/hosts) && echo "$others" >/etc/hosts
  rm -rf "$dir"
}

case "${1:-}" in
  up | down) "$1" "${2:?give the folder of its files}" ;;
  check) check ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
