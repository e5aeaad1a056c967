#!/usr/bin/env bash
# Makes the images that the test suite names out of the servers installed on this machine, for an engine that reaches no registry.
# A machine with a registry needs none of this: it pulls the official images of the same names.
#
#   scripts/images.sh FOLDER     FOLDER is emptied and used as a work folder
set -euo pipefail
work=${1:?a work folder}
rm -rf "$work"
mkdir -p "$work"

root() { # root FOLDER: the least that a container needs: a shell, users, a place for temporary files
    local folder=$1 applet
    mkdir -p "$folder"/{bin,etc,tmp,dev,proc,sys,run,data,var/lib}
    chmod 1777 "$folder/tmp" "$folder/run"
    cp /bin/busybox "$folder/bin/busybox"
    for applet in sh su chown chmod cat echo id ls mkdir printf rm test env; do
        ln -s busybox "$folder/bin/$applet"
    done
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'postgres:x:999:999::/data:/bin/sh' >"$folder/etc/passwd"
    printf '%s\n' 'root:x:0:' 'postgres:x:999:' >"$folder/etc/group"
    printf '%s\n' 'hosts: files dns' 'passwd: files' 'group: files' >"$folder/etc/nsswitch.conf"
}

add() { # add FOLDER FILE...: files at their own paths, with the libraries that they load
    local folder=$1 file library
    shift
    for file in "$@"; do
        mkdir -p "$folder$(dirname "$file")"
        cp -L "$file" "$folder$file"
        for library in $(ldd "$file" 2>/dev/null | grep -oE '/[^ ]+' || true); do
            [ -e "$folder$library" ] || { mkdir -p "$folder$(dirname "$library")"; cp -L "$library" "$folder$library"; }
        done
    done
}

import() { # import FOLDER NAME:TAG CHANGE...
    local folder=$1 name=$2 change changes=()
    shift 2
    for change in "$@"; do changes+=(--change "$change"); done
    tar -C "$folder" --numeric-owner --owner=0 --group=0 -c . | docker import "${changes[@]}" - "$name" >/dev/null
}

redis=$(command -v redis-server)
root "$work/redis"
add "$work/redis" "$redis"
# As the official image does: options alone are options of the server.
cat >"$work/redis/entry" <<END
#!/bin/sh
case \${1:-} in -*|"") set -- $redis --protected-mode no "\$@" ;; redis-server) shift; set -- $redis --protected-mode no "\$@" ;; esac
cd /data && exec "\$@"
END
chmod 755 "$work/redis/entry"
version=$(redis-server --version | sed -n 's/.* v=\([0-9]*\.[0-9]*\)\..*/\1/p')
import "$work/redis" "redis:$version" 'ENTRYPOINT ["/entry"]' 'EXPOSE 6379/tcp'

etcd=$(command -v etcd)
root "$work/etcd"
add "$work/etcd" "$etcd"
mkdir -p "$work/etcd/usr/local/bin"
mv "$work/etcd$etcd" "$work/etcd/usr/local/bin/etcd"
version=$(etcd --version | sed -n 's/^etcd Version: //p')
import "$work/etcd" "quay.io/coreos/etcd:v$version" 'CMD ["/usr/local/bin/etcd"]' 'EXPOSE 2379/tcp'

version=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n | tail -1)
home=/usr/lib/postgresql/$version
root "$work/postgres"
add "$work/postgres" "$home"/bin/{postgres,initdb,pg_ctl} "$home"/lib/{plpgsql,dict_snowball}.so "$home"/lib/*_and_*.so
mkdir -p "$work/postgres/usr/share/postgresql" "$work/postgres/usr/share/zoneinfo" "$work/postgres/usr/lib/locale"
cp -aL "/usr/share/postgresql/$version" "$work/postgres/usr/share/postgresql/"
cp -aL /usr/share/zoneinfo/{UTC,Etc,GMT} "$work/postgres/usr/share/zoneinfo/"
cp -a /usr/lib/locale/C.utf8 "$work/postgres/usr/lib/locale/"
cat >"$work/postgres/entry" <<END
#!/bin/sh
# As much of the official image's entry point as the suite uses: POSTGRES_PASSWORD, and options of the server.
set -e
export PATH=$home/bin:/bin LC_ALL=C.UTF-8 PGDATA=/data/postgres
if [ "\$(id -u)" = 0 ]; then
    chown postgres:postgres /data
    exec su -s /bin/sh postgres -c 'exec "\$0" "\$@"' -- /entry "\$@"
fi
if [ ! -s "\$PGDATA/PG_VERSION" ]; then
    printf '%s' "\${POSTGRES_PASSWORD:?}" >/tmp/password
    initdb -E UTF8 --locale=C.UTF-8 -U postgres --pwfile=/tmp/password -A trust -D "\$PGDATA" >/dev/null
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>"\$PGDATA/pg_hba.conf"
fi
exec postgres -D "\$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "\$@"
END
chmod 755 "$work/postgres/entry"
import "$work/postgres" "postgres:$version" 'ENTRYPOINT ["/entry"]' 'EXPOSE 5432/tcp'

rm -rf "$work"
docker images --format '{{.Repository}}:{{.Tag}} {{.Size}}'
