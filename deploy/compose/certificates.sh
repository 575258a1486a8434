#!/bin/sh
# Makes an authority and a certificate for each service of profile `tls` in volumes, unless they are there:
#   /certificates/SERVICE/{ca.crt,tls.crt,tls.key}     each SERVICE a volume of its own
# The authority's key is thrown away: nobody can sign another one. For new certificates remove the volumes and start again.
# With a SERVICE's name, or `client`: writes what that one has to stdout, as a tar file.
set -eu
umask 077
cd /certificates
if [ $# -gt 0 ]; then
  until [ -e client/tls.crt ]; do sleep 0.2; done
  exec tar -C "$1" -c ca.crt tls.crt tls.key
fi
# Made last, so that it tells that all is there.
[ -e client/tls.crt ] && exit 0

key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # options, separated by spaces
openssl req -x509 $key -days 3650 -subj /CN=tetrad -keyout "$work/ca.key" -out "$work/ca.crt"

for name in frontend tokenizer engine-core worker client; do
  # shellcheck disable=SC2086
  openssl req $key -subj "/CN=$name" -keyout "$name/tls.key" -out "$work/$name.csr"
  printf 'subjectAltName=DNS:%s,DNS:%s-tls,DNS:localhost,IP:127.0.0.1\n' "$name" "$name" >"$work/$name.ext"
  openssl x509 -req -in "$work/$name.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -days 365 \
    -extfile "$work/$name.ext" -out "$work/$name.crt"
  cp "$work/ca.crt" "$name/ca.crt"
  mv "$work/$name.crt" "$name/tls.crt"
done
echo "certificates: made"
