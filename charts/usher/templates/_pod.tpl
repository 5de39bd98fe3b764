{{/* What runs under Pod Security `restricted` */}}
{{- define "usher.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "usher.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "usher.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The fields of a Deployment around its containers: (list $ "operator" block) */}}
{{- define "usher.deployment" -}}
{{- $block := last . -}}
{{- if not (and $block.autoscaling $block.autoscaling.enabled) }}
replicas: {{ $block.replicaCount }}
{{- else }}
{{- /* Left out, Helm would take it away, which means 1, until the autoscaler looks again. */}}
{{- $name := include "usher.component" (list (first .) (index . 1)) }}
{{- with lookup "apps/v1" "Deployment" (first .).Release.Namespace $name }}
replicas: {{ .spec.replicas }}
{{- end }}
{{- end }}
revisionHistoryLimit: 3
selector:
  matchLabels:
    {{- include "usher.selectorLabels" (list (first .) (index . 1)) | nindent 4 }}
strategy:
  {{- toYaml $block.strategy | nindent 2 }}
{{- end -}}

{{- define "usher.podLabels" -}}
{{ include "usher.labels" (list (first .) (index . 1)) }}
{{- with (last .).podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The fields of a pod around its containers: (list $ "operator" block) */}}
{{- define "usher.pod" -}}
{{- $ := first . -}}
{{- $component := index . 1 -}}
{{- $block := last . -}}
serviceAccountName: {{ include "usher.serviceAccountName" . }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $block.terminationGracePeriodSeconds }}
securityContext:
  {{- include "usher.podSecurity" $ | nindent 2 }}
{{- include "usher.pullSecrets" $ }}
{{- with $block.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $block.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $block.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- with $block.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
{{- else }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "usher.selectorLabels" (list $ $component) | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- with $block.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The fields of a container that are alike: (list $ block) */}}
{{- define "usher.container" -}}
{{- $block := last . -}}
image: {{ include "usher.image" (list (first .) $block.image) }}
imagePullPolicy: {{ $block.image.pullPolicy }}
securityContext:
  {{- include "usher.containerSecurity" (first .) | nindent 2 }}
{{- with $block.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $block.startupProbe }}
startupProbe:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $block.livenessProbe }}
livenessProbe:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $block.readinessProbe }}
readinessProbe:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* (list $ "operator" block) */}}
{{- define "usher.disruptionBudget" -}}
{{- $budget := (last .).podDisruptionBudget -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "usher.metadata" (list (first .) (index . 1)) | nindent 2 }}
spec:
  {{- if ne (toString $budget.maxUnavailable) "<nil>" }}
  maxUnavailable: {{ $budget.maxUnavailable }}
  {{- else }}
  minAvailable: {{ $budget.minAvailable }}
  {{- end }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "usher.selectorLabels" (list (first .) (index . 1)) | nindent 6 }}
{{- end -}}

{{/* (list $ "operator" block mountToken) */}}
{{- define "usher.serviceAccount" -}}
{{- $account := (index . 2).serviceAccount -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "usher.serviceAccountName" (list (first .) (index . 1) (index . 2)) }}
  namespace: {{ (first .).Release.Namespace }}
  labels:
    {{- include "usher.labels" (list (first .) (index . 1)) | nindent 4 }}
  {{- with $account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: {{ last . }}
{{- end -}}

{{/* Metrics of an HPA: (list autoscaling) */}}
{{- define "usher.hpaMetrics" -}}
{{- $scaling := first . -}}
{{- with $scaling.targetCPUUtilizationPercentage }}
- type: Resource
  resource:
    name: cpu
    target: {type: Utilization, averageUtilization: {{ . }}}
{{- end }}
{{- with $scaling.targetSessions }}
- type: Pods
  pods:
    metric: {name: usher_transceiver_sessions}
    target: {type: AverageValue, averageValue: {{ . | quote }}}
{{- end }}
{{- with $scaling.metrics }}
{{ toYaml . }}
{{- end }}
{{- end -}}
