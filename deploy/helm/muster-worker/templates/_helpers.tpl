{{- define "worker.name" -}}
{{- printf "%s-worker" (.Release.Name | trunc 40 | trimSuffix "-") -}}
{{- end -}}

{{- define "worker.labels" -}}
app.kubernetes.io/name: muster-worker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "worker.metadata" -}}
name: {{ include "worker.name" . }}
labels:
  {{- include "worker.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* One setting as text: lists and tables as JSON, whole numbers without exponent. */ -}}
{{- define "worker.text" -}}
{{- if or (kindIs "map" .) (kindIs "slice" .) -}}
{{ toJson . }}
{{- else if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{- /* Names the reason if values are missing or contradict each other beyond what the schema can say. */ -}}
{{- define "worker.check" -}}
{{- with .Values.image }}
{{- if not .repository }}
{{- fail "image.repository is missing: build the target `worker` of deploy/images/services/Dockerfile and push it to your registry" }}
{{- else if not (or .tag .digest) }}
{{- fail "image needs a tag or a digest: an image without one can change between two starts" }}
{{- end }}
{{- end }}
{{- range .Values.pool.discovery }}
{{- if and (hasPrefix "http://" .) (not $.Values.allowPlainHttp) }}
{{- fail (printf "pool.discovery has %s, but workers refuse http to other machines: use https, or allowPlainHttp=true inside an encrypted network" .) }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Variables of traces, if they are enabled. */ -}}
{{- define "worker.tracing.env" -}}
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
