{{- define "accordion.name" -}}
{{- if contains "accordion" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-accordion" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "accordion.selector" -}}
app.kubernetes.io/name: accordion
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "accordion.labels" -}}
{{ include "accordion.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "accordion.secret" -}}
{{- if .Values.existingSecret }}{{ .Values.existingSecret }}{{ else if .Values.secrets }}{{ include "accordion.name" . }}{{ end }}
{{- end }}

{{/* Seconds that running responses may continue: server.shutdown_seconds. */}}
{{- define "accordion.shutdown" -}}
{{- dig "server" "shutdown_seconds" 30 .Values.config | int }}
{{- end }}
