from tetrad import LLM, SamplingParams
from tetrad.v1.metrics.reader import Counter, Gauge, Histogram, Vector


def main():
    llm = LLM(model="facebook/opt-125m", disable_log_stats=False)
    llm.generate(["Hello, my name is", "The future of AI is"], SamplingParams(temperature=0.8, top_p=0.95))
    for metric in llm.get_metrics():
        if isinstance(metric, Gauge):
            print(f"{metric.name} (gauge) = {metric.value}")
        elif isinstance(metric, Counter):
            print(f"{metric.name} (counter) = {metric.value}")
        elif isinstance(metric, Vector):
            print(f"{metric.name} (vector) = {metric.values}")
        elif isinstance(metric, Histogram):
            print(f"{metric.name} (histogram) sum = {metric.sum} count = {metric.count}")
            for bucket_le, value in metric.buckets.items():
                print(f"    {bucket_le} = {value}")


if __name__ == "__main__":
    main()
