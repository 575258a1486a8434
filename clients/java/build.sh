#!/usr/bin/env bash
# Compiles the stubs and the example into build/, from the .proto files alone, and writes build/complete, which runs it.
#   apt-get install default-jdk-headless protobuf-compiler protobuf-compiler-grpc-java-plugin libgrpc-java libprotobuf-java \
#     libnetty-java libperfmark-java libgeronimo-annotation-1.3-spec-java
set -euo pipefail
cd "$(dirname "$0")"
protos=../../protos jars=/usr/share/java
rm -rf build && mkdir -p build/src build/classes

protoc -I"$protos" --java_out=build/src --grpc-java_out=build/src --plugin=protoc-gen-grpc-java="$(command -v grpc_java_plugin)" \
  "$protos"/tetrad/v1/*.proto "$protos"/google/rpc/*.proto

classpath=$(printf '%s:' $jars/{grpc-api,grpc-context,grpc-core,grpc-netty,grpc-protobuf,grpc-protobuf-lite,grpc-stub}.jar \
  $jars/netty-{buffer,codec,codec-http,codec-http2,common,handler,handler-proxy,resolver,transport}.jar \
  $jars/{opencensus-api,opencensus-contrib-grpc-metrics,perfmark-api,protobuf,guava,geronimo-annotation-1.3-spec}.jar)
javac -nowarn -classpath "$classpath" -d build/classes $(find build/src src -name '*.java')

printf '#!/bin/sh\nexec java -classpath "%s%s/build/classes" Complete "$@"\n' "$classpath" "$PWD" >build/complete
chmod +x build/complete
