{{- define "muster.name" -}}
{{- printf "%s-%s" (.Release.Name | trunc 40 | trimSuffix "-") .component -}}
{{- end -}}

{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "muster.metadata" -}}
name: {{ include "muster.name" . }}
labels:
  {{- include "muster.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* Reference of an image: by digest if there is one. */ -}}
{{- define "muster.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end -}}

{{- /* One setting as text: lists and tables as JSON, whole numbers without exponent. */ -}}
{{- define "muster.text" -}}
{{- if or (kindIs "map" .) (kindIs "slice" .) -}}
{{ toJson . }}
{{- else if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{- /* Variables of a service's `settings`. */ -}}
{{- define "muster.settings" -}}
{{- range $key, $value := .settings }}
- name: MUSTER_{{ upper $.service }}_{{ upper $key }}
  value: {{ include "muster.text" $value | quote }}
{{- end }}
{{- end -}}

{{- /* Variables and files of the ledger, which all services read. */ -}}
{{- define "muster.ledger.env" -}}
- name: MUSTER_{{ upper .service }}_DEPLOYMENT
  value: /etc/muster/deployment.json
- name: MUSTER_{{ upper .service }}_{{ if eq .service "chain" }}RPC{{ else }}CHAIN_URL{{ end }}_FILE
  value: /run/muster/chain/url
{{- end -}}

{{- define "muster.redis.env" -}}
{{- $redis := .Values.redis }}
{{- $discovery := eq .service "discovery" }}
{{- if $redis.bundled }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $redis.passwordSecret.name }}, key: {{ $redis.passwordSecret.key }}}}
- name: MUSTER_{{ upper .service }}_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "muster.name" (merge (dict "component" (ternary "redis-discovery" "redis" $discovery)) .) }}:6379/0
{{- else }}
- name: MUSTER_{{ upper .service }}_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ $redis.urlSecret.name }}, key: {{ ternary $redis.urlSecret.discoveryKey $redis.urlSecret.key $discovery }}}}
{{- end }}
{{- end -}}

{{- define "muster.key.env" -}}
- name: MUSTER_{{ upper .service }}_KEYSTORE
  value: /run/muster/key/keystore
- name: MUSTER_{{ upper .service }}_PASSWORD_FILE
  value: /run/muster/key/password
{{- end -}}

{{- define "muster.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: deployment, mountPath: /etc/muster, readOnly: true}
- {name: chain, mountPath: /run/muster/chain, readOnly: true}
{{- if .key }}
- {name: key, mountPath: /run/muster/key, readOnly: true}
{{- end }}
{{- end -}}

{{- define "muster.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: deployment
  configMap: {name: {{ include "muster.name" (merge (dict "component" "ledger") .) }}}
- name: chain
  secret:
    secretName: {{ .Values.chain.urlSecret.name }}
    defaultMode: 0440
    items: [{key: {{ .Values.chain.urlSecret.key }}, path: url}]
{{- with .key }}
- name: key
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
    items:
      - {key: {{ .keystore }}, path: keystore}
      - {key: {{ .password }}, path: password}
{{- end }}
{{- end -}}

{{- /* What every pod has: no service account token, no variables of other Services, a user without rights. */ -}}
{{- define "muster.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  {{- if and .sandbox .Values.sandbox.namespaces }}
  seccompProfile: {type: Unconfined}
  appArmorProfile: {type: Unconfined}
  {{- else }}
  seccompProfile: {type: RuntimeDefault}
  {{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .own.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .own.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}

{{- define "muster.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* The program of a service with data. During maintenance nothing runs, so that `kubectl exec` can restore the data. */ -}}
{{- define "muster.program" -}}
{{- if .Values.maintenance -}}
command: [sh, -c, "trap exit TERM; sleep infinity & wait"]
{{- else -}}
args: {{ toJson .args }}
{{- end }}
{{- end -}}

{{- /* None of a container that does not run its `args` during maintenance. */ -}}
{{- define "muster.probes" -}}
{{- if not (and .Values.maintenance .args) -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
{{- end -}}

{{- define "muster.resources" -}}
{{- $resources := deepCopy .own.resources }}
{{- if .own.gpus }}
{{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" .own.gpus) (default (dict) $resources.limits)) }}
{{- end }}
resources: {{ toJson $resources }}
{{- end -}}

{{- define "muster.claim" -}}
- metadata: {name: state}
  spec:
    accessModes: [{{ default "ReadWriteOnce" .accessMode }}]
    {{- with .storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end -}}

{{- /* The Service of a component, by its `port`; `portName` other than http keeps it away from the ServiceMonitor,
and `metricsPort` adds a port for metrics only. */ -}}
{{- define "muster.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "muster.metadata" . | nindent 2 }}
spec:
  selector:
    {{- include "muster.labels" . | nindent 4 }}
  ports:
    - {name: {{ default "http" .portName }}, port: {{ .port }}, targetPort: {{ default "http" .portName }}}
    {{- with .metricsPort }}
    - {name: metrics, port: {{ . }}, targetPort: metrics}
    {{- end }}
{{- end -}}

{{- /* Names the reason if values are missing or contradict each other beyond what the schema can say. */ -}}
{{- define "muster.check" -}}
{{- $v := .Values }}
{{- range $name := list "services" "compute" }}
{{- $image := index $v.image $name }}
{{- if and (eq $name "compute") (not (or $v.validator.enabled $v.trainer.enabled)) }}
{{- else if not $image.repository }}
{{- fail (printf "image.%s.repository is missing: build the target `%s` of deploy/images/services/Dockerfile and push it to your registry" $name $name) }}
{{- else if not (or $image.tag $image.digest) }}
{{- fail (printf "image.%s needs a tag or a digest: an image without one can change between two starts" $name) }}
{{- end }}
{{- end }}
{{- if and $v.redis.bundled $v.redis.urlSecret.name }}
{{- fail "redis.bundled is true and redis.urlSecret.name is set: set redis.bundled=false to use your own Redis, or remove redis.urlSecret.name" }}
{{- else if and $v.redis.bundled (not $v.redis.passwordSecret.name) }}
{{- fail "redis.passwordSecret.name is missing: the bundled Redis needs a Secret with its password" }}
{{- else if not (or $v.redis.bundled $v.redis.urlSecret.name) }}
{{- fail "redis.urlSecret.name is missing: with redis.bundled=false, name a Secret with the URL of your Redis" }}
{{- end }}
{{- range $name := list "discovery" "orchestrator" "validator" "gateway" "trainer" }}
{{- $own := index $v $name }}
{{- if and (ne (toString $own.enabled) "false") (not $own.keySecret.name) }}
{{- fail (printf "%s.keySecret.name is missing: name a Secret with the keystore and password of the key (`muster keys new`)" $name) }}
{{- end }}
{{- end }}
{{- range $name, $url := dict "pool.publicUrl" $v.pool.publicUrl "discovery.publicUrl" $v.discovery.publicUrl "gateway.publicUrl" $v.gateway.publicUrl "relay.publicUrl" $v.relay.publicUrl }}
{{- if and (hasPrefix "http://" $url) (not $v.allowPlainHttp) }}
{{- fail (printf "%s is %s, but clients refuse http to other machines: use https, or allowPlainHttp=true inside an encrypted network" $name $url) }}
{{- end }}
{{- end }}
{{- if and $v.discovery.enabled (not $v.discovery.publicUrl) }}
{{- fail "discovery.publicUrl is missing: nodes register there; or set discovery.enabled=false and name another one in orchestrator.discovery" }}
{{- else if not (or $v.discovery.enabled $v.orchestrator.discovery) }}
{{- fail "orchestrator.discovery is empty and discovery.enabled is false: the orchestrator would find no node" }}
{{- end }}
{{- $bucket := $v.orchestrator.bucket.name }}
{{- if and (gt (int $v.orchestrator.replicas) 1) (not $bucket) (ne $v.orchestrator.storage.accessMode "ReadWriteMany") }}
{{- fail "orchestrator.replicas is above 1, but files of the run are in a volume of one replica: set orchestrator.bucket.name, or orchestrator.storage.accessMode=ReadWriteMany" }}
{{- end }}
{{- if and (or $bucket (gt (int $v.orchestrator.replicas) 1)) (not $v.orchestrator.sealingKeySecret.name) }}
{{- fail "orchestrator.sealingKeySecret.name is missing: with a bucket or several replicas, all replicas read one key from a Secret" }}
{{- end }}
{{- if not $v.pool.run }}
{{- range $name := list "gateway" "trainer" "relay" }}
{{- if (index $v $name).enabled }}
{{- fail (printf "pool.run is missing: %s works for a run" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $v.gateway.enabled $v.trainer.enabled }}
{{- fail "gateway.enabled and trainer.enabled are both true: a run serves clients or trains, so install a release for each run" }}
{{- end }}
{{- if and $v.gateway.enabled (not $v.gateway.publicUrl) }}
{{- fail "gateway.publicUrl is missing: tasks of workers reach the gateway there" }}
{{- end }}
{{- if and $v.trainer.enabled (not $v.trainer.base.claim) }}
{{- fail "trainer.base.claim is missing: name a PersistentVolumeClaim with the base model (weights, tokenizer, recipe.json)" }}
{{- end }}
{{- if and $v.relay.enabled (not $v.relay.publicUrl) }}
{{- fail "relay.publicUrl is missing: nodes fetch versions there" }}
{{- end }}
{{- if and $v.relay.enabled (not (or $v.relay.upstream $v.trainer.enabled)) }}
{{- fail "relay.upstream is missing: without the trainer of this release there is no origin to fetch from" }}
{{- end }}
{{- end -}}

{{- /* Variables of traces, if they are enabled. */ -}}
{{- define "muster.tracing.env" -}}
{{- with .Values.tracing }}
{{- if .enabled }}
- name: MUSTER_TRACING_ENABLED
  value: "true"
- name: MUSTER_TRACING_SAMPLE_RATIO
  value: {{ .sampleRatio | quote }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ required "tracing.endpoint is missing: URL of the OpenTelemetry collector, such as http://otel-collector:4318" .endpoint | quote }}
{{- with .headersSecret }}
{{- if .name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .name }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
