{{/* An HPA: (list $ component autoscaling target), target with apiVersion, kind, name */}}
{{- define "usher.hpa" -}}
{{- $scaling := index . 2 -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "usher.metadata" (list (first .) (index . 1)) | nindent 2 }}
spec:
  scaleTargetRef:
    {{- toYaml (last .) | nindent 4 }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    {{- include "usher.hpaMetrics" (list $scaling) | nindent 4 }}
  {{- with $scaling.behavior }}
  behavior:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
