{{/* Names */}}
{{- define "usher.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "usher.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "usher.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "usher.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of a component's objects: (list $ "operator") */}}
{{- define "usher.component" -}}
{{- printf "%s-%s" (include "usher.fullname" (first .)) (last .) -}}
{{- end -}}

{{/* What selects pods of a component; it never changes: (list $ "operator") */}}
{{- define "usher.selectorLabels" -}}
{{- $ := first . -}}
app.kubernetes.io/name: {{ include "usher.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "usher.labels" -}}
{{- $ := first . -}}
{{ include "usher.selectorLabels" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/part-of: usher
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object of a component: (list $ "operator") */}}
{{- define "usher.metadata" -}}
name: {{ include "usher.component" . }}
namespace: {{ (first .).Release.Namespace }}
labels:
  {{- include "usher.labels" . | nindent 2 }}
{{- end -}}

{{/* registry/repository:tag or @digest: (list $ image) */}}
{{- define "usher.image" -}}
{{- $ := first . -}}
{{- $image := last . -}}
{{- $registry := default $.Values.global.imageRegistry $image.registry -}}
{{- $name := ternary (printf "%s/%s" $registry $image.repository) $image.repository (ne $registry "") -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default $.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* (list $ "operator" block) */}}
{{- define "usher.serviceAccountName" -}}
{{- $account := (last .).serviceAccount -}}
{{- if $account.create -}}
{{- default (include "usher.component" (list (first .) (index . 1))) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{/* Namespace whose pools take signaling's calls */}}
{{- define "usher.poolsNamespace" -}}
{{- default .Release.Namespace .Values.signaling.poolsNamespace -}}
{{- end -}}

{{/* Namespaces that the operator looks after, as a JSON list; [] with clusterWide: all of them */}}
{{- define "usher.watchNamespaces" -}}
{{- with .Values.operator -}}
{{- if and .clusterWide .watchNamespaces -}}
{{- fail "operator.clusterWide and operator.watchNamespaces exclude each other: name namespaces, or look after all of them" -}}
{{- end -}}
{{- ternary list (default (list $.Release.Namespace) .watchNamespaces) .clusterWide | toJson -}}
{{- end -}}
{{- end -}}

{{/* Whether metrics objects can be made: "true" or "" */}}
{{- define "usher.hasPrometheusOperator" -}}
{{- if or (eq .Values.metrics.renderMode "Always") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}true{{- end -}}
{{- end -}}

{{/* Settings in camelCase as environment: (list settings) */}}
{{- define "usher.settingsEnv" -}}
{{- range $name, $value := first . }}
- name: USHER_{{ snakecase $name | upper }}
  {{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
  {{- else if and (kindIs "float64" $value) (eq (float64 $value) (floor $value)) }}
  value: {{ printf "%.0f" $value | quote }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where signaling answers inside the cluster */}}
{{- define "usher.signalingURL" -}}
http://{{ include "usher.component" (list . "signaling") }}.{{ .Release.Namespace }}:{{ .Values.signaling.service.port }}
{{- end -}}

{{/* Helm can't make a pool in the same breath as its kind; in a cluster that lacks the kinds this says what to do */}}
{{- define "usher.requireKinds" -}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (not (.Capabilities.APIVersions.Has "usher.fleet/v1alpha1")) -}}
{{- fail "relay.pool.create and transceiver.pool.create need the kinds RelayPool and TransceiverPool in the cluster: install without them first, then `helm upgrade` with them" -}}
{{- end -}}
{{- end -}}

{{/* Whether calls come through an Ingress or HTTPRoute: "true" or "" (its block) */}}
{{- define "usher.passesCalls" -}}
{{- if .enabled -}}
{{- range .paths }}{{ if hasPrefix (printf "%s/" (trimSuffix "/" .)) "/v1/realtime/calls/" }}true{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
